//go:build prometheus

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// Prometheus's own tool accepts the rules.
func TestAlerts(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// A real Prometheus answers each panel's queries, and alerts only about the lock that is forced open.
func TestPrometheus(t *testing.T) {
	metrics := httptest.NewServer(start(t, time.Second))
	defer metrics.Close()
	p := startPrometheus(t, strings.TrimPrefix(metrics.URL, "http://"))

	fill := strings.NewReplacer("$job", ".*", "$group", ".*", "$__rate_interval", "10s")
	for title, exprs := range panels(t) {
		for _, expr := range exprs {
			redistest.Eventually(t, 2*time.Minute, func() bool {
				for _, value := range p.ask(t, "/api/v1/query?query="+url.QueryEscape(fill.Replace(expr))) {
					if value != "NaN" {
						return true
					}
				}
				return false
			}, "an answer for "+title)
		}
	}
	var alerts []string
	redistest.Eventually(t, 2*time.Minute, func() bool {
		alerts = p.alerts(t)
		return len(alerts) > 0
	}, "an alert")
	require.Equal(t, []string{"RlockLost import gone"}, alerts)
}

type server struct{ url string }

// startPrometheus runs a Prometheus until the test ends.
func startPrometheus(t *testing.T, target string) server {
	t.Helper()
	rules, err := filepath.Abs("alerts.yml")
	require.NoError(t, err)
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\n"+
		"scrape_configs: [{job_name: shop, static_configs: [{targets: [%q]}]}]\n", rules, target)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only finds a free port
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	log := new(strings.Builder)
	cmd := exec.CommandContext(context.Background(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+dir, "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start(), "prometheus has to be on PATH")
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	p := server{"http://" + addr}
	redistest.Eventually(t, 30*time.Second, func() bool {
		r, err := http.Get(p.url + "/-/ready") //nolint:noctx // it answers at once
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, "Prometheus is ready")
	return p
}

func (p server) get(t *testing.T, path string, into any) {
	t.Helper()
	r, err := http.Get(p.url + path) //nolint:noctx // it answers at once
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, http.StatusOK, r.StatusCode, path)
	require.NoError(t, json.NewDecoder(r.Body).Decode(into))
}

// ask returns the values of a query.
func (p server) ask(t *testing.T, path string) (values []string) {
	t.Helper()
	var reply struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	p.get(t, path, &reply)
	for _, r := range reply.Data.Result {
		values = append(values, r.Value[1].(string))
	}
	return values
}

// alerts returns the firing alerts.
func (p server) alerts(t *testing.T) (firing []string) {
	t.Helper()
	var reply struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	p.get(t, "/api/v1/alerts", &reply)
	for _, a := range reply.Data.Alerts {
		if a.State == "firing" {
			firing = append(firing, a.Labels["alertname"]+" "+a.Labels["rlock_group"]+" "+a.Labels["error_type"])
		}
	}
	return firing
}
