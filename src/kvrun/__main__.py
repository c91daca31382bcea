"""``python -m kvrun``: the command line."""

from kvrun.cli.main import main

if __name__ == "__main__":
    main()
