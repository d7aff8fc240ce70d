#!/usr/bin/env bash
# Builds the images with buildah, as OCI archives in dist/, each with its SBOM; a release signs them (deploy/provenance.py).
#
#   bash deploy/images.sh                                  # from the default base, with the network
#   BASE=localhost/debian-python PIP_ARGS="--no-index --find-links=wheelhouse" bash deploy/images.sh gateway
#   TORCH="torch==2.13.0+cpu --extra-index-url=https://download.pytorch.org/whl/cpu" bash deploy/images.sh backend   # without CUDA
#
# BASE: an image with `python`; ISOLATION: buildah's (chroot where no namespaces can be made).
set -euo pipefail
cd "$(dirname "$0")/.."
command -v buildah >/dev/null || { echo "error: buildah is not installed; on Debian and Ubuntu: apt install buildah" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -n 1)
revision=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || { echo "error: the tree has changes that no commit holds; commit them first" >&2; exit 1; }
created=$(git show -s --format=%ct HEAD)
options=(--isolation "${ISOLATION:-oci}" --timestamp "$created" --format oci)
[ -z "${BASE:-}" ] || options+=(--build-arg "PYTHON=$BASE")
[ -z "${PIP_ARGS:-}" ] || options+=(--build-arg "PIP_ARGS=$PIP_ARGS")
mkdir -p dist
sbom_tool=build/sbom-tool/bin/cyclonedx-py
test -x "$sbom_tool" || { python3 -m venv build/sbom-tool && build/sbom-tool/bin/pip install -q cyclonedx-bom==7.5.0; }

# Of what is installed in an image, as its own Python says.
sbom() {
  local container installed='import importlib.metadata as m; print(*sorted(f"{d.name}=={d.version}" for d in m.distributions()), sep="\n")'
  container=$(buildah from --pull-never "$1")
  buildah run --isolation "${ISOLATION:-oci}" "$container" -- /opt/domicile/bin/python -c "$installed" \
    | "$sbom_tool" requirements --output-reproducible --of JSON -o "$2" - 2>/dev/null
  buildah rm "$container" >/dev/null
}

for name in "${@:-gateway backend}"; do
  for image in $name; do
    more=()
    [ "$image" = backend ] && [ -n "${TORCH:-}" ] && more=(--build-arg "TORCH=$TORCH")
    echo "== building domicile-$image:$version"
    buildah build -q "${options[@]}" "${more[@]}" -f "deploy/Dockerfile.$image" \
      --label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.revision=$revision" \
      --label "org.opencontainers.image.licenses=Apache-2.0" -t "domicile-$image:$version" .
    archive="dist/domicile-$image-$version.oci.tar"
    rm -f "$archive"
    buildah push -q "domicile-$image:$version" "oci-archive:$archive:domicile-$image:$version"
    sbom "domicile-$image:$version" "dist/domicile-$image-$version.cdx.json"
    echo "   $archive and its SBOM, $(grep -c '"purl"' "dist/domicile-$image-$version.cdx.json") components"
  done
done
