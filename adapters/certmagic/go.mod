module github.com/go-rlock/rlock/adapters/certmagic

go 1.26.0

require (
	github.com/caddyserver/certmagic v0.25.6
	github.com/go-rlock/rlock v0.1.0
	go.uber.org/zap v1.28.0
)

require (
	github.com/caddyserver/zerossl v0.1.6 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/cpuid/v2 v2.4.0 // indirect
	github.com/libdns/libdns v1.1.1 // indirect
	github.com/mholt/acmez/v3 v3.1.7 // indirect
	github.com/miekg/dns v1.1.73 // indirect
	github.com/redis/rueidis v1.0.79 // indirect
	github.com/zeebo/blake3 v0.2.4 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	go.uber.org/zap/exp v0.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
)

// For tests.
require github.com/stretchr/testify v1.12.1
