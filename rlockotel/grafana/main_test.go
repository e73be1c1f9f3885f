package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// start keeps locks busy until the test ends, and returns their metrics.
func start(t *testing.T, beat time.Duration) http.Handler {
	t.Helper()
	trace, handler, err := measure()
	require.NoError(t, err)
	rdb := redistest.Start(t).Client(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- work(ctx, rdb, trace, beat) }() // ends with the test
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return handler
}

func scrape(handler http.Handler) string {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String()
}

// The dashboard and the alerts use only existing metrics and labels, and all of them.
func TestNames(t *testing.T) {
	handler := start(t, 20*time.Millisecond)
	var all string
	redistest.Eventually(t, 30*time.Second, func() bool {
		all = scrape(handler)
		for _, late := range []string{"rlock_losses_total{", "rlock_lease_margin_bucket{", "rlock_path=\"grant\"", "error_type="} {
			if !strings.Contains(all, late) {
				return false
			}
		}
		return true
	}, "all was measured")

	there := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^(\w+)|(\w+)="`).FindAllStringSubmatch(all, -1) {
		there[m[1]+m[2]] = true
	}
	asked := make(map[string]bool)
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\brlock_\w+|\berror_type\b`).FindAllString(string(text), -1) {
			asked[name] = true
			assert.True(t, there[name], "%s asks for %s, which there is not", file, name)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (rlock_\w+) (\w+)`).FindAllStringSubmatch(all, -1) {
		name := m[1]
		if m[2] == "histogram" {
			name += "_bucket"
		}
		assert.True(t, asked[name], "no panel or alert uses %s", name)
	}
}

// panels are the dashboard's queries, by panel title.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := make(map[string][]string)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
		}
	}
	require.Len(t, all, 8)
	return all
}
