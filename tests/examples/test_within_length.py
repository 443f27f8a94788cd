import torch
from paceline_examples.within_length import normalized, within


def test_places_before_the_length_are_inside():
    inside = within(torch.tensor([2, 0, 3]), 3)
    assert inside.tolist() == [[True, True, False], [False, False, False], [True, True, True]]


def test_each_sequence_is_normalized_over_its_own_values():
    x = 3 * torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0)) + 7
    length = torch.tensor([50, 20])
    for sequence, count in zip(normalized(x, length), length.tolist(), strict=True):
        assert abs(sequence[:count].mean()) < 1e-5
        assert abs(sequence[:count].var(correction=0) - 1) < 1e-3
        assert not sequence[count:].any()


def test_what_is_padding_does_not_matter():
    x = torch.randn(1, 9, 2)
    padded = torch.cat([x, 100 * torch.ones(1, 5, 2)], 1)
    length = torch.tensor([9])
    torch.testing.assert_close(normalized(padded, length)[:, :9], normalized(x, length))


def test_a_constant_sequence_becomes_zeros():
    assert not normalized(torch.full((1, 5, 2), 0.5), torch.tensor([5])).any()
