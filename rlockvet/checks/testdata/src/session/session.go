// Package session stands for packages that keep values in a ctx, such as those of traces and log lines.
package session

import "context"

type key struct{}

func FromContext(ctx context.Context) *string { v, _ := ctx.Value(key{}).(*string); return v }

func Refresh(ctx context.Context) error { return ctx.Err() }

func Watch(ctx context.Context) <-chan string { return nil }

type Logger struct{}

func (*Logger) Infof(ctx context.Context, format string, args ...any) {}

func (*Logger) Flush(ctx context.Context) {}
