module github.com/go-rlock/rlock/internal/testing/sim

go 1.25.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/go-rlock/rlock v0.1.0
	github.com/go-rlock/rlock/rlocktest v0.1.0
	github.com/redis/rueidis v1.0.79
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace (
	github.com/go-rlock/rlock => ../../..
	github.com/go-rlock/rlock/rlocktest => ../../../rlocktest
)
