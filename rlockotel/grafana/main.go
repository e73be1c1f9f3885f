// The program grafana keeps some locks busy and exports rlockotel's metrics, for the dashboard and the alerts in this folder:
//
//	go run . -redis 127.0.0.1:6379
//	prometheus --config.file=prometheus.yml --storage.tsdb.path=/tmp/rlock-prometheus
//
// In Grafana, import dashboard.json and choose that Prometheus.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

func main() {
	redis := flag.String("redis", "127.0.0.1:6379", "address of Redis")
	listen := flag.String("listen", "127.0.0.1:9464", "where /metrics is served")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *redis, *listen); err != nil {
		log.Fatal(err) //nolint:gocritic // the deferred call has nothing left to do
	}
}

func run(ctx context.Context, redis, listen string) error {
	trace, handler, err := measure()
	if err != nil {
		return err
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis}})
	if err != nil {
		return err
	}
	defer rdb.Close()
	server := &http.Server{Addr: listen, Handler: handler, ReadHeaderTimeout: time.Second}
	shop, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- work(shop, rdb, trace, time.Second) }() // ends with the ctx
	context.AfterFunc(shop, func() { _ = server.Close() })
	log.Printf("locks are busy; what is measured of them: http://%s/metrics", listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

// measure sets up a service's metrics for Prometheus.
func measure() (*rlock.Trace, http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, nil, err
	}
	trace, err := rlockotel.New(
		rlockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))),
		rlockotel.WithGroup(func(name string) string {
			group, _, _ := strings.Cut(name, ":")
			return group
		}))
	return trace, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}
