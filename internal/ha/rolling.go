package main

import (
	"context"
	"fmt"
	"time"
)

// rolling restarts each of three replicas twice, one after the other, while clients connect
// anew every few seconds.
func rolling(ctx context.Context, s *scene) error {
	if err := s.build(ctx); err != nil {
		return err
	}
	pg, err := s.startDatabase(ctx)
	if err != nil {
		return err
	}
	if err := s.startFleet(ctx, pg.URL(database)); err != nil {
		return err
	}
	began := time.Now()
	if err := s.startLoad(ctx); err != nil {
		return err
	}
	for range 2 {
		for i := range s.members {
			if err := s.restart(ctx, i); err != nil {
				return err
			}
			if err := s.workGoesOn(ctx); err != nil {
				return err
			}
		}
	}
	if err := s.settle(ctx, began); err != nil {
		return err
	}
	s.fact("replicas restarted: %d, connections end after %v", 2*len(s.members), connectionAge)
	if least := int64(s.workers * len(s.members) * 2); s.load.opened.Load() < least {
		return fmt.Errorf("%d connections were opened: at less than %d their age was not at work", s.load.opened.Load(), least)
	}
	return nil
}
