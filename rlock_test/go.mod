module github.com/go-rlock/rlock/rlock_test

go 1.25.0

replace (
	github.com/go-rlock/rlock => ..
	github.com/go-rlock/rlock/rlocktest => ../rlocktest
)

require (
	github.com/cockroachdb/datadriven v1.0.3
	github.com/go-rlock/rlock v0.1.0
	github.com/go-rlock/rlock/rlocktest v0.1.0
	github.com/redis/rueidis v1.0.79
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
