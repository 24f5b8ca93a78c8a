"""Public files: addresses, sizes and SHA-256 sums, keyed by their place in the data folder.

The sums are the ones published with TensorFlow Datasets.
"""

from __future__ import annotations

from collections.abc import Sequence

from pocketbayes.data.download import Remote


def _files(place: str, mirrors: Sequence[str], table: str) -> dict[str, Remote]:
    """Rows of file name, bytes, SHA-256."""
    rows = (line.split() for line in table.strip().splitlines())
    return {
        place + file: Remote([mirror + file for mirror in mirrors], int(size), sha256)
        for file, size, sha256 in rows
    }


REMOTES = {
    **_files(
        "mnist/",
        [
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ],
        """
        train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
        train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
        t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
        t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
        """,
    ),
    **_files(
        "fashion-mnist/",
        ["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"],
        """
        train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
        train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
        t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
        t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
        """,
    ),
    **_files(
        "",
        ["https://www.cs.toronto.edu/~kriz/"],
        """
        cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
        cifar-100-binary.tar.gz 168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec
        """,
    ),
    **_files(
        "svhn/",
        ["http://ufldl.stanford.edu/housenumbers/"],
        """
        train_32x32.mat 182040794 435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8
        test_32x32.mat 64275384 cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b
        """,
    ),
}

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table
tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100.split())
