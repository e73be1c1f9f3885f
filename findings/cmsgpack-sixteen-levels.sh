#!/usr/bin/env bash
# Redis and Valkey: cmsgpack.pack turns what is deeper than sixteen tables into nil
#
# Run:      Redis 6.2.14 and 8.2.3, Valkey 9.1.2 (PyPI): in a script, tables inside each other with a text in the innermost, 15, 16 and 17
#           deep, packed and unpacked with cmsgpack, and encoded and decoded with cjson.
# Guess:    it comes back. If there is a limit, an error says so, as cjson's does at 1,000.
# Seen:     the seventeenth table is written as nil, without an error.
# Matters:  a queue or an owner's state that nests (each retry or holder wrapped around the one before) loses its oldest part in the
#           script that repacks it, and unpack is content.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

script='
local function text(depth, pack, unpack)
	local value = "text"
	for _ = 1, depth do value = {inner = value} end
	value = unpack(pack(value))
	while type(value) == "table" do value = value.inner end
	return tostring(value)
end
local all = {}
for _, depth in ipairs({15, 16, 17}) do
	local packed, encoded = text(depth, cmsgpack.pack, cmsgpack.unpack), text(depth, cjson.encode, cjson.decode)
	table.insert(all, depth .. " deep: cmsgpack: " .. packed .. ", cjson: " .. encoded)
end
local ok, err = pcall(text, 1001, cjson.encode, cjson.decode)
table.insert(all, "1001 deep: cjson: " .. (ok and "no error" or "error"))
return all'

main() {
	local name
	for name in redis-6.2 redis-8.2 valkey-9.1; do
		start_server "$name"
		echo "$name:"
		ask EVAL "$script" 0
	done
}
expect main <<'END'
redis-6.2:
15 deep: cmsgpack: text, cjson: text
16 deep: cmsgpack: text, cjson: text
17 deep: cmsgpack: nil, cjson: text
1001 deep: cjson: error
redis-8.2:
15 deep: cmsgpack: text, cjson: text
16 deep: cmsgpack: text, cjson: text
17 deep: cmsgpack: nil, cjson: text
1001 deep: cjson: error
valkey-9.1:
15 deep: cmsgpack: text, cjson: text
16 deep: cmsgpack: text, cjson: text
17 deep: cmsgpack: nil, cjson: text
1001 deep: cjson: error
END
