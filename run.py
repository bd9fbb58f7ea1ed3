"""Run a Ray layout: ``python run.py cluster=2x8_spread ray=simulated``; ``python run.py --help`` says the rest."""

from rl_cluster.app import main

if __name__ == "__main__":
    main()
