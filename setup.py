"""Which packages a wheel has; the rest is in setup.cfg.

configs/ and launch/ are installed below birdie_jax/, where their names are nobody else's.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["birdie_jax*", "hlo_analysis*", "pallas_kernels*"]),
        *("birdie_jax.configs", "birdie_jax.launch"),
    ],
    package_dir={"birdie_jax.configs": "configs", "birdie_jax.launch": "launch"},
)
