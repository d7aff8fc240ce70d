import pytest

from regions.authority import CertificateAuthority


@pytest.fixture
def authority(tmp_path):
    return CertificateAuthority.open(tmp_path / "ca", "demo")
