package outerctx

import (
	"context"

	"github.com/go-rlock/rlock/rlock"
)

// The token of a section, and the sides of a read/write lock.

func put(context.Context, int64) error { return nil }

func tokenOfOuter(outer context.Context, client *rlock.Client) error {
	return client.FencedMutex("f").Do(outer, func(ctx context.Context) error {
		token, ok := rlock.FencingToken(outer, "f") // want `^outer is from outside of this Do, and does not carry the hold: pass ctx$`
		if !ok {
			return nil
		}
		return put(ctx, token)
	})
}

func tokenOfVariable(outer context.Context, client *rlock.Client, name string) error {
	m := client.FencedMutex(name)
	held, unlock, err := m.Lock(outer)
	if err != nil {
		return err
	}
	defer unlock()
	one, _ := rlock.FencingToken(outer, name) // want `outer is from before the Lock in line \d+, and does not carry the hold: pass held`
	two, _ := m.FencingToken(outer)           // want `outer is from before the Lock in line \d+, and does not carry the hold: pass held`
	return put(held, one+two)
}

func tokenOfIgnored(outer context.Context, m *rlock.Mutex) error {
	return m.Do(outer, func(context.Context) error {
		token, _ := m.FencingToken(outer) // want `outer is from outside of this Do`
		return put(context.WithoutCancel(outer), token)
	})
}

func valueWaitsForItself(ctx context.Context, m *rlock.Mutex) (int, error) {
	return rlock.DoValue(ctx, m, func(ctx context.Context) (int, error) {
		return 1, m.Do(rlock.Detach(ctx), work) // want `rlock\.Detach\(ctx\) in the section of this DoValue does not carry the hold, so that this Do waits for itself`
	})
}

func upgradeInSection(ctx context.Context, client *rlock.Client) error {
	rw := client.RWMutex("rw")
	return rw.Read().Do(ctx, func(ctx context.Context) error {
		return rw.Write().Do(ctx, work) // want `^a reader cannot become the writer, so this Do in the section of this Do fails with ErrUpgrade: use Upgradeable, or end the read section first$`
	})
}

func upgradeVariables(ctx context.Context, rw *rlock.RWMutex) error {
	reader, writer := rw.Read(), rw.Write()
	held, unlock, err := reader.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	_, _, err = writer.Lock(held) // want `a reader cannot become the writer, so this Lock in the section of the Lock in line \d+ fails`
	return err
}

func upgradeValue(ctx context.Context, rw *rlock.RWMutex) (int, error) {
	return rlock.DoValue(ctx, rw.Read(), func(ctx context.Context) (int, error) {
		return rlock.DoValue(ctx, rw.Write(), func(context.Context) (int, error) { return 1, nil }) // want `this DoValue in the section of this DoValue fails`
	})
}

// Correct code, without findings.

func otherTokens(outer context.Context, client *rlock.Client, name string) error {
	return client.FencedMutex("inner").Do(outer, func(ctx context.Context) error {
		token, ok := rlock.FencingToken(outer, "outer")
		other, _ := rlock.FencingToken(outer, name)
		own, _ := rlock.FencingToken(ctx, "inner")
		if !ok {
			return nil
		}
		return put(ctx, token+other+own)
	})
}

func otherSides(ctx context.Context, a, b *rlock.RWMutex) error {
	err := a.Write().Do(ctx, func(ctx context.Context) error {
		return a.Read().Do(ctx, work)
	})
	if err != nil {
		return err
	}
	return a.Read().Do(ctx, func(ctx context.Context) error {
		return b.Write().Do(ctx, work)
	})
}
