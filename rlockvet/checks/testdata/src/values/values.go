package values

import (
	"context"
	"log"
	"log/slog"

	"github.com/go-rlock/rlock/rlock"

	"logger"
	"session"
)

type userKey struct{}

func work(ctx context.Context) error { return ctx.Err() }

// Functions that only read a value of a ctx.

func userOf(ctx context.Context) string { user, _ := ctx.Value(userKey{}).(string); return user }

func isAdmin(ctx context.Context) bool { return userOf(ctx) == "admin" }

func audit(ctx context.Context, what string) { slog.InfoContext(ctx, what, "user", userOf(ctx)) }

type service struct {
	ctx context.Context
	log *session.Logger
}

func (s *service) tenant(ctx context.Context) any { return ctx.Value("tenant") }

func quorum(_ context.Context, errs ...error) error { return errs[0] } // has it, and makes no use of it

func logIf(ctx context.Context, err error) { logger.LogIf(ctx, err) }

func pick(ctx context.Context) error { return quorum(ctx, nil) }

// Functions that do more.

func userIfAlive(ctx context.Context) string {
	if ctx.Err() != nil {
		return ""
	}
	return userOf(ctx)
}

func save(ctx context.Context, user string) { log.Print(user, userOf(ctx), work(ctx)) }

func (s *service) own(ctx context.Context) error { return work(s.ctx) }

func do(ctx context.Context, m *rlock.Mutex, s *service) error {
	return m.Do(ctx, func(held context.Context) error {
		log.Print(userOf(ctx), isAdmin(ctx), s.tenant(ctx), session.FromContext(ctx))
		audit(ctx, "in")
		_ = pick(ctx)
		logIf(ctx, nil)
		s.log.Infof(ctx, "in")
		_ = userIfAlive(ctx)     // want `pass held$`
		save(ctx, "ada")         // want `pass held$`
		_ = s.own(ctx)           // want `pass held$`
		_ = session.Refresh(ctx) // want `pass held$`
		_ = session.Watch(ctx)   // want `pass held$`
		s.log.Flush(ctx)         // want `pass held$`
		_ = logger.Flush(ctx)    // want `pass held$`
		return work(held)
	})
}

func lock(ctx context.Context, m *rlock.Mutex) error {
	held, unlock, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	audit(ctx, "in")
	save(ctx, userOf(ctx)) // want `pass held$`
	return work(held)
}
