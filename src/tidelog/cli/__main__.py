"""`python -m tidelog.cli` is the same as `tidelog`."""

from tidelog.cli.main import main

if __name__ == "__main__":
    main()
