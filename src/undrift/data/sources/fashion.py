"""Fashion-MNIST."""

from __future__ import annotations

from undrift.data.sources.idx import IdxOrParity


class Fashion(IdxOrParity):
    """60,000 + 10,000 pictures of clothes, 28 x 28; normalised as MNIST, as in FedTrip."""

    name = "fashion"
    title = "Fashion-MNIST, clothes"
    homepage = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    size = "30.9 MB"
    folder = "FashionMNIST"
    called = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
    url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    files = (
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    )
