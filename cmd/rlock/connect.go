package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/redis/rueidis"
)

const defaultAddr = "127.0.0.1:6379"

// options understands an address: host:port, several of them joined by commas, or a URL.
func options(addr string) (rueidis.ClientOption, error) {
	o := rueidis.ClientOption{InitAddress: strings.Split(addr, ",")}
	if strings.Contains(addr, "://") {
		var err error
		if o, err = rueidis.ParseURL(addr); err != nil {
			return o, fmt.Errorf("address: %w", err)
		}
	}
	o.DisableCache = true // nothing here reads through the client-side cache
	return o, nil
}

// address is the flag's, else the environment's, else the default one.
func (p *program) address(flag string) string {
	return cmp.Or(flag, p.getenv("REDIS_ADDR"), defaultAddr)
}
