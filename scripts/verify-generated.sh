#!/usr/bin/env bash
# Generates everything again in a copy and shows what would change. The work tree itself is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.tools
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

# Tracked files and new ones, as they are now; deleted ones are skipped.
git ls-files -z --cached --others --exclude-standard \
  | while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done \
  | tar --null --files-from=- -c | tar -xC "$copy"
cp -r "$copy" "$copy.before"
trap 'rm -rf "$copy" "$copy.before"' EXIT

make -C "$copy" --no-print-directory generate TOOLS="$tools" TOOLS_BUILT=

if ! diff -ru "$copy.before" "$copy"; then
  echo "verify: generated files are not current; run: make generate" >&2
  exit 1
fi
echo "verify: generated files are current"
