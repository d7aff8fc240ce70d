import inspect
import subprocess
import sys

import torch

from backend.kernels import fused, interface, reference


def test_every_kernel_has_a_twin_with_its_name_and_signature():
    for name in fused.__all__:
        assert inspect.signature(getattr(fused, name)) == inspect.signature(getattr(reference, name)), name


def test_the_interface_names_what_both_sets_offer():
    assert {name for name in vars(interface.Kernels) if not name.startswith("_")} == set(fused.__all__)


def test_a_device_gets_its_set():
    assert interface.kernels_for(torch.device("cuda")) is fused
    assert interface.kernels_for(torch.device("cpu")) is reference


def test_the_twins_need_no_triton():
    program = (
        "import sys; sys.modules['triton'] = None; import torch; from backend.kernels.interface import kernels_for; "
    )
    program += "print(kernels_for(torch.device('cpu')).silu_mul(torch.ones(1, 2)).item())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0.731")
