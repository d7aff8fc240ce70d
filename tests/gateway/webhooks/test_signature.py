import base64

import pytest

from audit.files.secret_file import LoosePermissions
from gateway.webhooks.signature import SecretError, read_key, signed_headers


def kept(tmp_path, text, mode=0o600):
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_the_published_vector_of_standard_webhooks(tmp_path):
    key = read_key(kept(tmp_path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"))
    headers = signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_plain_text_is_a_key_as_it_is(tmp_path):
    assert read_key(kept(tmp_path, "x" * 24 + "\n")) == b"x" * 24


@pytest.mark.parametrize("text", ["", "short", "x" * 23, "whsec_", "whsec_" + base64.b64encode(bytes(23)).decode()])
def test_a_short_one_is_refused_and_not_repeated(tmp_path, text):
    with pytest.raises(SecretError, match="shorter than 24 bytes") as error:
        read_key(kept(tmp_path, text))
    assert str(error.value) == f"the secret in {tmp_path / 'secret'} is shorter than 24 bytes; make a longer one"


def test_what_is_not_base64_is_refused(tmp_path):
    with pytest.raises(SecretError, match="is not base64"):
        read_key(kept(tmp_path, "whsec_!!!" + "x" * 40))


def test_one_that_others_can_read_is_refused(tmp_path):
    with pytest.raises(LoosePermissions):
        read_key(kept(tmp_path, "x" * 30, 0o644))
