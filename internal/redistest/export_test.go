package redistest

import "strings"

// ProxyGoroutines counts what Goroutines leaves out: the proxies' own.
func ProxyGoroutines() int {
	n := 0
	for _, stack := range stacks() {
		if strings.Contains(stack, "redistest.(*link).") || strings.Contains(stack, "redistest.(*Proxy).accept") {
			n++
		}
	}
	return n
}
