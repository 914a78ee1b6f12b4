#!/usr/bin/env bash
# The first minutes of a newcomer on a fresh system (newcomer.sh starts this in it). Each step is measured by internal/silence;
# the installation of what is not boxgate's (git, make, npm) is not. A failed step does not prevent the following ones.
#
# usage: steps.sh SYSTEM STEP...
#        steps.sh run STEP (performs one step, unmeasured)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin
host=${NEWCOMER_HOST:-deb.debian.org} # reachable by HTTPS

apt() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

# From the clone to the end of the demo.
demo() {
  git clone /srv/boxgate.git /root/boxgate && cd /root/boxgate && make demo
}

# From the package to the first command in the first box.
package() {
  sh /srv/source/dist/install.sh /srv/release "$(sha256sum </srv/release/SHA256SUMS | cut -d ' ' -f 1)" &&
    exempt && gateway check && systemctl enable --now boxgate &&
    gateway box create --name first --policy deny-all && gateway box exec first -- echo "the first box runs"
}

# exempt: a mirror in a private network is closed to boxes by default
exempt() {
  [ -z "${NEWCOMER_EXEMPT:-}" ] || printf 'network: {protected_exempt: [%s]}\n' "$NEWCOMER_EXEMPT" >>/etc/boxgate/boxgate.yaml
}

# One command under a policy.
run() {
  gateway run --allow "$host" -- curl -sS -o /dev/null -w 'status %{http_code}\n' "https://$host/"
}

# The first example of README.md, with a host of ours. npm shows its progress on terminals only, so a stage does.
sdk() {
  mkdir -p /root/agent && cd /root/agent && /srv/source/dist/stage.sh "npm install" npm install --no-progress @upstash/box ${NEWCOMER_NODE:-} &&
    example >agent.mjs &&
    UPSTASH_BOX_BASE_URL=http://127.0.0.1:8600 UPSTASH_BOX_API_KEY=$(cat /var/lib/boxgate/api-key) GITHUB_TOKEN=none \
      PATH="/root/agent/node_modules/.bin:$PATH" node agent.mjs
}

# example: the first block of JavaScript in README.md, which then reports its result and deletes the box
example() {
  sed -n '/^```js$/,/^```$/{/^```/!p}' /srv/source/README.md | sed "s|api.github.com/user|$host/|; s|api.github.com|$host|g"
  echo 'console.log("exit code", run.exitCode); await box.delete(); if (run.exitCode !== 0) process.exit(1);'
}

if [ "$1" = run ]; then
  "$2"
  exit
fi
system=$1
shift
export NEWCOMER_EXEMPT
NEWCOMER_EXEMPT=$(getent ahosts "$host" | awk '{print $1}' | sort -u | sed 's|.*:.*|&/128|; s|^[^:]*$|&/32|' | paste -sd,)
apt-get update -qq
for step in "$@"; do
  case $step in
    demo) apt git make ;;
    run) apt curl ;;
    sdk)
      apt nodejs npm
      # npm has the binaries of Node; Debian 12's own is too old for the SDK (docs/sdk.md).
      [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || export NEWCOMER_NODE=node@22
      ;;
  esac
  echo "== $system: $step"
  /srv/silence -system /var/log/newcomer.tsv "$system" "$step" "$here/steps.sh" run "$step" | tee "/var/log/newcomer-$step.log"
  [ "$step" != demo ] || sed -nE "s/^2 of 4 .* done in ([0-9]+) s\$/$system\tcompile\t0\t\1000/p" /var/log/newcomer-demo.log >>/var/log/newcomer.tsv
done
# Boxes would delay the shutdown.
! command -v gateway >/dev/null || apt-get purge -y -qq boxgate >/dev/null
