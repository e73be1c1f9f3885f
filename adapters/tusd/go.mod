module github.com/go-rlock/rlock/adapters/tusd

go 1.25.0

require (
	github.com/go-rlock/rlock v0.1.0
	github.com/tus/tusd/v2 v2.9.1
	golang.org/x/exp v0.0.0-20250106191152-7588d65b2ba8
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

// For tests.
require github.com/stretchr/testify v1.12.1
