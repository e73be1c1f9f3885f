package main

import (
	"context"
	"log"
	"time"
)

// service is the layer of rules. Any code may call its methods, so each locks the order. Under a ctx that already holds the order, that is
// a re-entry, and does not wait.
type service struct {
	orders  *repository
	payment time.Duration
}

// ship ships an order, after payment if it is not paid for.
func (s *service) ship(ctx context.Context, id string) (o order, err error) {
	err = s.orders.locked(ctx, id, func(ctx context.Context) error {
		if o, err = s.charge(ctx, id); err != nil || o.Shipped {
			return err
		}
		log.Printf("order %s: shipped", id)
		o, err = s.orders.update(ctx, id, func(o *order) { o.Shipped = true })
		return err
	})
	return o, err
}

// charge charges for an order once.
func (s *service) charge(ctx context.Context, id string) (o order, err error) {
	err = s.orders.locked(ctx, id, func(ctx context.Context) error {
		if o, err = s.orders.get(ctx, id); err != nil || o.Charged {
			return err
		}
		log.Printf("order %s: payment", id)
		if err := s.pay(ctx); err != nil {
			return err
		}
		log.Printf("order %s: charged", id)
		o, err = s.orders.update(ctx, id, func(o *order) { o.Charged = true })
		return err
	})
	return o, err
}

// pay stands for a payment service. Like all work under a lock it ends with the ctx.
func (s *service) pay(ctx context.Context) error {
	select {
	case <-time.After(s.payment):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
