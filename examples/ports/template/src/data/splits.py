"""What Paceline needs of a DataModule: its Datasets by name."""


def split(datamodule, name):
    datamodule.setup()
    return getattr(datamodule, f"data_{name}")
