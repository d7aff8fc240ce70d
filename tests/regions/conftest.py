import pytest

from regions.identity.authority import CertificateAuthority


@pytest.fixture
def authority(tmp_path):
    return CertificateAuthority.open(tmp_path / "ca", "demo")
