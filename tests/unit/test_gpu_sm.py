"""The table of SM versions."""

from __future__ import annotations

import pytest

from sidecar.gpu import sm


@pytest.mark.parametrize(
    ("capability", "name"), [((9, 0), "sm90"), ((10, 3), "sm103"), ((12, 1), "sm121"), ((8, 9), "sm89")]
)
def test_a_compute_capability_names_its_sm_version(capability: tuple[int, int], name: str) -> None:
    assert sm.from_capability(*capability) == name


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "sm90"),
        ("NVIDIA H200", "sm90"),
        ("NVIDIA GH200 480GB", "sm90"),
        ("NVIDIA A100-SXM4-80GB", "sm80"),
        ("NVIDIA A10G", "sm86"),
        ("NVIDIA L40S", "sm89"),
        ("NVIDIA L4", "sm89"),
        ("Tesla V100-SXM2-16GB", "sm70"),
        ("Tesla T4", "sm75"),
        ("NVIDIA B200", "sm100"),
        ("NVIDIA GB300", "sm103"),
        ("NVIDIA GB10", "sm121"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm120"),
        ("NVIDIA RTX 6000 Ada Generation", "sm89"),
        ("NVIDIA GeForce RTX 4090", "sm89"),
        ("Quadro RTX 6000", "sm75"),
    ],
)
def test_a_product_name_tells_its_sm_version(product: str, name: str) -> None:
    assert sm.from_product(product) == name


@pytest.mark.parametrize("product", ["", "NVIDIA XH200", "NVIDIA H2000", "AMD Instinct MI300X"])
def test_a_product_that_is_not_in_the_table_has_no_sm_version(product: str) -> None:
    assert sm.from_product(product) is None


def test_no_product_stands_in_two_rows() -> None:
    products = [product for row in sm.TABLE for product in row.products]
    assert len(products) == len(set(products))


def test_the_readme_rows_have_one_cell_a_column() -> None:
    assert all(len(row) == len(sm.HEADINGS) for row in sm.documented())
