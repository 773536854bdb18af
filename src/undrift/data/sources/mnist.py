"""MNIST."""

from __future__ import annotations

from undrift.data.sources.idx import IdxOrParity


class Mnist(IdxOrParity):
    """60,000 + 10,000 handwritten digits, 28 x 28; mean 0.1307, standard deviation 0.3081."""

    name = "mnist"
    title = "MNIST, handwritten digits"
    homepage = "http://yann.lecun.com/exdb/mnist/"
    licence = "CC BY-SA 3.0"
    size = "11.6 MB"
    folder = "MNIST"
    url = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    files = (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
