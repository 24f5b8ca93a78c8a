"""`python -m pocketbayes` is `pocketbayes`, also under torchrun."""

from pocketbayes.cli import main

main()
