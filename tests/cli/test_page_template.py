from framework.cli.page_template import rendered


def test_values_are_escaped_and_the_style_is_inside(tmp_path):
    template = tmp_path / "page.html"
    template.write_text("<style>{{ style }}</style><p>{{ name }}</p>")
    html = rendered(template, name="<script>")
    assert "<p>&lt;script&gt;</p>" in html
    assert "font-family" in html
