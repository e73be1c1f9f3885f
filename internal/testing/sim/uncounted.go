package sim

import "strings"

// hide takes those from a reply that the server does not count.
func (u Uncounted) hide(args []string, reply any) any {
	hidden := func(channel string) bool {
		if u != half {
			return u == everybody
		}
		id := channel[strings.LastIndexByte(channel, ':')+1:]
		return len(id) == 36 && id[35] < '8'
	}
	switch strings.ToLower(args[0]) {
	case "publish", "spublish":
		if hidden(args[1]) {
			return 0
		}
	case "pubsub":
		if counts, ok := reply.([]any); ok {
			for i := 1; i < len(counts); i += 2 {
				if hidden(args[1+(i+1)/2]) {
					counts[i] = 0
				}
			}
		}
	}
	return reply
}
