"""`python -m pocketbayes.cli` is `pocketbayes`."""

from pocketbayes.cli import main

main()
