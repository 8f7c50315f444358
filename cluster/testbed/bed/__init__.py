"""What every part of the test bed stands on: places, packages, daemons, images. Standard library only."""
