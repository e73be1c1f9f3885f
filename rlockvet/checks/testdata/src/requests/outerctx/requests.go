// Package outerctx is checked with the real library only: net/http takes long to load from its source.
package outerctx

import (
	"context"
	"net/http"

	"github.com/go-rlock/rlock/rlock"
)

func work(ctx context.Context) error { return ctx.Err() }

func ofARequest(m *rlock.Mutex) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		held, unlock, err := m.Lock(ctx)
		if err != nil {
			return
		}
		defer unlock()
		_ = held
		_ = work(r.Context()) // want `^r\.Context\(\) is from before the Lock`
	}
}

func middleware(m *rlock.Mutex, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = m.Do(r.Context(), func(ctx context.Context) error {
			next.ServeHTTP(w, r) // want `^r has the ctx from outside of this Do, which does not end when the lock is lost: pass what its method WithContext returns for the section's ctx$`
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
	}
}

func sent(ctx context.Context, m *rlock.Mutex, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost", nil)
	if err != nil {
		return err
	}
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = client.Do(req) // want `^req has the ctx from before the Lock in line \d+, which does not end`
	if err == nil {
		_, err = client.Do(req.WithContext(held))
	}
	return err
}

func replaced(m *rlock.Mutex, next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, unlock, err := m.Lock(r.Context())
		if err != nil {
			return
		}
		defer unlock()
		r = r.WithContext(ctx)
		next.ServeHTTP(w, r)
	}
}
