from pathlib import Path

import pytest

from gateway.configuration.settings import SettingsError, load_settings


def written(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_defaults_listen_on_loopback_only(tmp_path):
    settings = load_settings(data=tmp_path)
    assert settings.listen.host == "127.0.0.1"
    assert settings.data == tmp_path


def test_the_environment_overrides_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DOMICILE__LISTEN__PORT", "9000")
    assert load_settings(written(tmp_path, "listen: {port: 8000, host: 127.0.0.1}")).listen.port == 9000


def test_a_path_in_the_file_is_meant_from_where_the_file_lies(tmp_path):
    assert load_settings(written(tmp_path, "data: here")).data == tmp_path / "here"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listen: {prot: 1}", "listen.prot"),
        ("listen: {port: 99999}", "listen.port"),
        ("cell: eu-1", "cell"),
        ("- a list", "mapping at the top"),
        ("a: [", "is not YAML"),
        ("listen: {host: 0.0.0.0}", "reachable from other machines"),
        ("listen: {cert_file: a.pem}", "cert_file or key_file is missing; set both or neither"),
        ("oidc: {client_id: x}", "without issuer"),
        ("oidc: {issuer: 'http://id.example.eu', audience: a}", "issuer must be an https URL"),
        ("oidc: {issuer: 'https://u:p@id.example.eu', audience: a}", "issuer must be an https URL"),
        ("oidc: {issuer: 'https://id.example.eu?x=1', audience: a}", "issuer must be an https URL"),
        ("oidc: {issuer: 'https://[id', audience: a}", "issuer must be an https URL"),
        ("oidc: {issuer: 'https://id.example.eu'}", "set redirect_uri"),
        ("oidc: {issuer: 'https://id.example.eu', redirect_uri: 'https://g.example.eu/x'}", "needs client_id"),
        (
            "oidc: {issuer: 'https://i.eu', client_id: x, redirect_uri: 'http://g.eu/x'}",
            "redirect_uri must be an https",
        ),
        ("oidc: {issuer: 'https://i.eu', client_id: x, audience: x}", "must not be the client_id"),
        ("oidc: {projects: [{group: g, tenant: acme, project: main}]}", "without issuer"),
        (
            "oidc: {issuer: 'https://i.eu', client_id: x, redirect_uri: 'https://g.eu/x',"
            " projects: [{group: g, tenant: acme, project: main}]}",
            "need an audience",
        ),
        ("oidc: {issuer: 'https://i.eu', audience: x, projects: [{group: g, tenant: A/B, project: main}]}", "tenant"),
        ("oidc: {issuer: 'https://i.eu', audience: x, scope: profile}", "must hold openid"),
        ("oidc: {issuer: 'https://i.eu', audience: x, clock_skew_s: 301}", "oidc.clock_skew_s"),
        ("fleet: {draft_models: {llama: ../elsewhere}}", "fleet.draft_models.llama"),
        ("fleet: {draft_models: {/etc/llama: small}}", "fleet.draft_models"),
        ("fleet: {draft_models: {llama: 'eagle3:../head'}}", "fleet.draft_models.llama"),
        ("fleet: {draft_models: {llama: 'medusa:head'}}", "fleet.draft_models.llama"),
        ("oidc: {roles: [{group: g, role: dpo}]}", "either tenant: NAME or staff: true"),
        ("oidc: {roles: [{group: g, role: dpo, tenant: acme, staff: true}]}", "either tenant"),
        ("oidc: {roles: [{group: g, role: operator, tenant: acme}]}", "only staff"),
        ("oidc: {roles: [{group: g, role: root, staff: true}]}", "oidc.roles.0.role"),
        ("oidc: {roles: [{group: g, role: dpo, tenant: ACME}]}", "oidc.roles.0.tenant"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path, text, says):
    with pytest.raises(SettingsError, match=says):
        load_settings(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read .*absent\.yaml"):
        load_settings(tmp_path / "absent.yaml")


def test_settings_do_not_change_after_they_are_read(tmp_path):
    settings = load_settings(data=tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        settings.node = "other"


def test_metrics_are_for_this_host_and_behind_a_proxy_for_nobody_unless_it_is_said():
    assert [str(n) for n in load_settings().listen.operators] == ["127.0.0.0/8", "::1/128"]
    assert load_settings(listen={"tls_ended_by_proxy": True}).listen.operators == ()
    said = load_settings(listen={"tls_ended_by_proxy": True, "operations_from": ["10.1.0.0/16"]}).listen.operators
    assert [str(n) for n in said] == ["10.1.0.0/16"]


def test_the_example_in_deploy_says_the_defaults():
    example = Path(__file__).parents[3] / "deploy" / "config.example.yaml"
    defaults = load_settings(data=example.parent / "domicile-data", node="gateway-1")
    assert load_settings(example) == defaults
