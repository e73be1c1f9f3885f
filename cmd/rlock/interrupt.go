package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// interruptible returns a context that a signal cancels, with the signal as its cause.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, heeded(os.Interrupt, syscall.SIGTERM)...)
	go func() { // ends with ctx
		select {
		case s := <-signals:
			cancel(signalled{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
