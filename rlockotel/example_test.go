package rlockotel_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
)

// A service measures its locks by group. A real one uses an exporter instead of the reader, and usually sets its provider with
// otel.SetMeterProvider.
func ExampleNew() {
	reader := metric.NewManualReader()
	trace, err := rlockotel.New(
		rlockotel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))),
		rlockotel.WithGroup(func(name string) string {
			group, _, _ := strings.Cut(name, ":")
			return group
		}),
	)
	if err != nil {
		panic(err)
	}

	redis := connect()
	defer redis.Close()
	client, err := rlock.New(redis, rlock.Options{Trace: trace})
	if err != nil {
		panic(err)
	}
	defer client.Close()

	for _, order := range []string{"order:41", "order:42"} {
		_ = client.Mutex(order).Do(context.Background(), func(context.Context) error { return nil })
	}

	var all metricdata.ResourceMetrics
	_ = reader.Collect(context.Background(), &all)
	for _, m := range all.ScopeMetrics[0].Metrics {
		if h, ok := m.Data.(metricdata.Histogram[float64]); ok {
			for _, p := range h.DataPoints {
				fmt.Println(m.Name, p.Attributes.Encoded(attribute.DefaultEncoder()), p.Count)
			}
		}
	}
	// Output:
	// rlock.acquire.duration rlock.group=order,rlock.kind=mutex,rlock.outcome=acquired,rlock.path=free 2
	// rlock.hold.duration rlock.group=order,rlock.kind=mutex 2
}

// connect stands for the service's client.
func connect() rueidis.Client {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	redis, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:  []string{server.Addr()},
		DisableCache: true, // the embedded server has no client-side caching; a real one needs no such option
	})
	if err != nil {
		panic(err)
	}
	return redis
}
