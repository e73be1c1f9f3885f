package redistest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// admin is one node of a deployment, with a client connected only to it.
type admin struct {
	*Server
	client rueidis.Client
}

func newAdmin(tb testing.TB, s *Server) *admin {
	tb.Helper()
	return &admin{Server: s, client: s.Client(tb, Single)}
}

func (a *admin) do(cmd ...string) rueidis.RedisResult {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return a.client.Do(ctx, a.client.B().Arbitrary(cmd...).Build())
}

// must returns a text reply, or "" for null. It fails the test on an error.
func (a *admin) must(tb testing.TB, cmd ...string) string {
	tb.Helper()
	text, err := a.do(cmd...).ToString()
	if err != nil && !rueidis.IsRedisNil(err) {
		tb.Fatalf("redistest: %s: %s: %v", a.Addr(), strings.Join(cmd, " "), err)
	}
	return text
}

// ask returns a text reply, or "" on any error, so that conditions can poll it.
func (a *admin) ask(cmd ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text, err := a.client.Do(ctx, a.client.B().Arbitrary(cmd...).Build()).ToString()
	if err != nil {
		return ""
	}
	return text
}

// fields parses the "name:value" lines of INFO and CLUSTER INFO.
func fields(info string) map[string]string {
	all := make(map[string]string)
	// RESP3 prefixes such a text with its format, and the client leaves the prefix in place.
	for line := range strings.Lines(strings.TrimPrefix(info, "txt:")) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// synced reports whether the node is a replica in sync with its master.
func (a *admin) synced() bool {
	repl := fields(a.ask("INFO", "replication"))
	return repl["role"] == "slave" && repl["master_link_status"] == "up"
}

func addrs(nodes []*admin) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Addr())
	}
	return all
}

func servers(nodes []*admin) []*Server {
	var all []*Server
	for _, n := range nodes {
		all = append(all, n.Server)
	}
	return all
}
