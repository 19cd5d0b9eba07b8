package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// firstCommit stands for the version before as long as there is no release.
const firstCommit = "c8d3083"

// upgrade lets three replicas of the version before work, migrates under their load, and replaces
// them one by one by this version, with all of them at work on one database in between. Then it
// goes one step back: a replica of the version before is started on the new schema.
func upgrade(ctx context.Context, s *scene) error {
	old, err := s.buildOld(ctx)
	if err != nil {
		return err
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	pg, err := s.startDatabase(ctx)
	if err != nil {
		return err
	}
	url := pg.URL(database)
	for range 3 {
		if err := s.startMember(ctx, old, url); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := s.startLoad(ctx); err != nil {
		return err
	}
	if err := s.migrate(ctx, url); err != nil {
		return err
	}
	if err := s.workGoesOn(ctx); err != nil {
		return err
	}
	for i, m := range s.members {
		m.Use(s.binary)
		if err := s.restart(ctx, i); err != nil {
			return err
		}
		if err := s.workGoesOn(ctx); err != nil {
			return err
		}
	}
	s.say("back to the version before, with one replica")
	s.members[0].Use(old)
	if err := s.restart(ctx, 0); err != nil {
		return fmt.Errorf("the version before does not start on the new schema: %w", err)
	}
	if err := s.workGoesOn(ctx); err != nil {
		return err
	}
	return s.settle(ctx, began)
}

// migrate runs the migrations of this version, as a step of its own.
func (s *scene) migrate(ctx context.Context, url string) error {
	began := time.Now()
	said, err := exec.CommandContext(ctx, s.binary, "migrate", "--database-url", url).CombinedOutput()
	if err != nil {
		return fmt.Errorf("migrate: %w\n%s", err, said)
	}
	s.fact("migrated under load in %.1f s: %s", time.Since(began).Seconds(), strings.TrimSpace(string(said)))
	return nil
}

// buildOld makes the binary of the version before from git.
func (s *scene) buildOld(ctx context.Context) (string, error) {
	if s.before != "" {
		s.fact("the version before is the binary %s", s.before)
		return s.before, nil
	}
	commit := s.old
	if commit == "" {
		commit = newestRelease(ctx)
	}
	root, err := output(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return "", err
	}
	named, err := output(ctx, root, "git", "log", "-1", "--format=%h %s", commit)
	if err != nil {
		return "", fmt.Errorf("the version before is not in this clone's history: %w", err)
	}
	s.fact("the version before is %s", named)
	source := filepath.Join(s.dir, "before")
	if err := os.Mkdir(source, 0o755); err != nil {
		return "", err
	}
	archive := filepath.Join(s.dir, "before.tar")
	if _, err := output(ctx, root, "git", "archive", "--output", archive, commit); err != nil {
		return "", err
	}
	if _, err := output(ctx, "", "tar", "-xf", archive, "-C", source); err != nil {
		return "", err
	}
	binary := filepath.Join(s.dir, "leasehold-before")
	_, err = output(ctx, source, "go", "build", "-buildvcs=false", "-o", binary, "./cmd/leasehold")
	return binary, err
}

// newestRelease is the newest tag before this commit, else the commit that stands for it.
func newestRelease(ctx context.Context) string {
	for _, rev := range []string{"HEAD^", "HEAD"} {
		if tag, err := output(ctx, "", "git", "describe", "--tags", "--abbrev=0", "--match", "v*", rev); err == nil {
			return tag
		}
	}
	return firstCommit
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	said, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			said = exit.Stderr
		}
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said)
	}
	return strings.TrimSpace(string(said)), nil
}
