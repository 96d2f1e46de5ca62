#!/usr/bin/env bash
# Makes sure that the images named on the command line are in this machine's Docker: those that are there stay, others are
# pulled, and where no registry answers, stand-ins are made under the same names from Debian's packages and the Go
# toolchain that is installed here. A stand-in carries the label paymentsd.standin, so that it can be told and removed:
#
#   docker rmi $(docker images -q --filter label=paymentsd.standin)
#
# Usage: scripts/base-images.sh golang:1.26-bookworm postgres:15-bookworm
set -euo pipefail

suite=bookworm
debian=paymentsd-standin-debian:$suite

main() {
  docker info >/dev/null 2>&1 || { echo "base images: Docker does not answer; start its daemon, or join the group docker" >&2; exit 1; }
  local image
  for image in "$@"; do
    if docker image inspect "$image" >/dev/null 2>&1; then
      continue
    fi
    echo "base images: pulling $image"
    if timeout 900 docker pull --quiet "$image" 2>/dev/null; then
      continue
    fi
    echo "base images: no registry gives $image; making a stand-in"
    case $image in
      golang:*-$suite) standin_golang "$image" ;;
      postgres:15-$suite) standin_postgres "$image" ;;
      nats:*-alpine) standin_program "$image" github.com/nats-io/nats-server/v2 "v$(expr "$image" : 'nats:\(.*\)-alpine')" nats-server ;;
      axllent/mailpit:*) standin_program "$image" github.com/axllent/mailpit "${image#*:}" mailpit ;;
      *) echo "base images: there is no stand-in for $image" >&2; exit 1 ;;
    esac
  done
}

# standin_debian is a minimal Debian from the mirrors that this machine's apt is set up with.
standin_debian() {
  docker image inspect "$debian" >/dev/null 2>&1 && return
  need_root_and_debootstrap
  local root mirror
  root=$(mktemp -d)
  trap "rm -rf '$root'" EXIT
  mirror=$(sources | awk -v suite=$suite '$3 == suite { print $2; exit }')
  debootstrap --variant=minbase --include=ca-certificates $suite "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 \
    || { tail -20 "$root.log" >&2; exit 1; }
  rm -f "$root.log"
  if [ -n "$mirror" ]; then
    sources >"$root/etc/apt/sources.list"
    # Where this machine trusts a certificate of its own (a proxy's, a mirror's), the stand-in has to as well.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    apt-config dump | grep -iE '^Acquire::https?::.*Proxy' >"$root/etc/apt/apt.conf.d/90host" || true
  fi
  rm -rf "$root"/var/cache/apt/archives/*.deb
  tar -C "$root" -c . | docker import --change 'LABEL paymentsd.standin=true' --change 'CMD ["bash"]' - "$debian" >/dev/null
  rm -rf "$root"
  trap - EXIT
}

# sources prints the "deb" lines of Debian itself that apt knows, whatever format they are configured in.
sources() {
  apt-get indextargets --format '$(ORIGIN) deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null \
    | awk -v suite=$suite '$1 == "Debian" && $4 ~ "^" suite && $5 == "main" { print $2, $3, $4, $5 }' | sort -u
}

need_root_and_debootstrap() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "base images: no registry is reachable, and stand-ins need root on Debian; pull the images elsewhere and docker load them" >&2
    exit 1
  fi
  [ -n "$(sources)" ] || apt-get update -qq
  command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap >/dev/null
}

# standin_program IMAGE MODULE VERSION NAME builds a program from its own module.
standin_program() {
  local context
  context=$(mktemp -d)
  (cd "$context" && GOBIN=$context GOFLAGS=-mod=mod CGO_ENABLED=0 go install "$2@$3") >"$context/log" 2>&1 || { tail -20 "$context/log" >&2; exit 1; }
  docker build --quiet --tag "$1" --file - "$context" >/dev/null <<DOCKERFILE
FROM scratch
COPY $4 /$4
LABEL paymentsd.standin=true
ENTRYPOINT ["/$4"]
DOCKERFILE
  rm -rf "$context"
}

# standin_golang puts this machine's toolchain where the official image has it.
standin_golang() {
  standin_debian
  docker build --quiet --network host --tag "$1" --file - "$(go env GOROOT)" >/dev/null <<DOCKERFILE
FROM $debian
COPY . /usr/local/go
ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin GOTOOLCHAIN=local GOPATH=/go
LABEL paymentsd.standin=true
DOCKERFILE
}

# standin_postgres answers to the part of the official image's contract that docker-compose.yml uses: POSTGRES_USER,
# POSTGRES_PASSWORD, POSTGRES_DB, data in PGDATA, server as user postgres, programs on the PATH, SIGINT to stop.
standin_postgres() {
  standin_debian
  local context
  context=$(mktemp -d)
  cp "$(dirname "$0")/standin-postgres-entrypoint.sh" "$context/docker-entrypoint.sh"
  docker build --quiet --network host --tag "$1" --file - "$context" >/dev/null <<DOCKERFILE
FROM $debian
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
RUN mkdir -p /etc/postgresql-common/createcluster.d \
 && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/none.conf \
 && apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15 >/dev/null \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data
COPY docker-entrypoint.sh /usr/local/bin/
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
EXPOSE 5432
LABEL paymentsd.standin=true
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
DOCKERFILE
  rm -rf "$context"
}

main "$@"
