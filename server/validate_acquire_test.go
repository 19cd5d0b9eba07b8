package server

import (
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// TestPlainAcquirePassesNothingThatTheRulesRefuse draws requests around every bound.
func TestPlainAcquirePassesNothingThatTheRulesRefuse(t *testing.T) {
	t.Parallel()
	v, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
	name := rapid.OneOf(rapid.StringMatching(`[a-z0-9]{4,6}`), rapid.StringMatching(`[a-z0-9]{7,9}`), rapid.StringMatching(`[a-z0-9]{1,3}`), rapid.StringMatching(`[a-z0-9A-Z._/é-]{0,3}`), rapid.StringMatching(`[a-z]{127,129}`))
	text := rapid.OneOf(rapid.StringMatching(`[a-z]{1,4}`), rapid.StringMatching(`[a-z]{1,4}`), rapid.StringMatching(`[a-z]{1,256}`), rapid.StringMatching(`[a-z\x00é]{0,4}`), rapid.StringMatching(`[a-z]{254,258}`))
	rarely := func(s *rapid.Generator[string]) *rapid.Generator[*string] {
		return rapid.OneOf(rapid.Just[*string](nil), rapid.Just[*string](nil), rapid.Ptr(s, true))
	}
	duration := rapid.Custom(func(t *rapid.T) *durationpb.Duration {
		return &durationpb.Duration{
			Seconds: rapid.SampledFrom([]int64{-1, 0, 1, 2, 59, 60, 61, 43_199, 43_200, 43_201, 1 << 40}).Draw(t, "seconds"),
			Nanos:   rapid.SampledFrom([]int32{-1, 0, 1, 999_999_999, 1_000_000_000}).Draw(t, "nanos"),
		}
	})
	plain, other := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		r := &pb.AcquireLeaseRequest{
			Queues:        rapid.SliceOfN(name, 0, 3).Draw(t, "queues"),
			LeaseOwner:    text.Draw(t, "owner"),
			MaxJobs:       rapid.Ptr(rapid.SampledFrom([]int32{-1, 0, 1, 2, 10, 999, 1000, 1001}), true).Draw(t, "max_jobs"),
			RequestId:     rarely(text).Draw(t, "request_id"),
			JobId:         rarely(rapid.StringMatching(`[0-9]{0,2}`)).Draw(t, "job_id"),
			Wait:          rapid.OneOf(rapid.Just[*durationpb.Duration](nil), rapid.Just(durationpb.New(5e9)), rapid.Just(durationpb.New(7e9)), duration).Draw(t, "wait"),
			LeaseDuration: rapid.OneOf(rapid.Just[*durationpb.Duration](nil), rapid.Just(durationpb.New(5e9)), rapid.Just(durationpb.New(7e9)), duration).Draw(t, "lease_duration"),
		}
		if !plainAcquire(r) {
			other++
			return
		}
		plain++
		if err := v.rules.Validate(r); err != nil {
			t.Fatalf("%v passes for plain: %v", r, err)
		}
		if plan := v.times[r.ProtoReflect().Descriptor().FullName()]; plan != nil {
			var found []violation
			if plan.check(r.ProtoReflect(), "", &found); len(found) > 0 {
				t.Fatalf("%v passes for plain: %v", r, found)
			}
		}
	})
	if plain == 0 || other == 0 {
		t.Errorf("%d plain requests, %d others: the draw proves nothing", plain, other)
	}
	t.Logf("%d plain requests, %d others", plain, other)
	usual := &pb.AcquireLeaseRequest{Queues: []string{"payments.eu"}, LeaseOwner: "payments-7f9c/1", Wait: durationpb.New(20e9)}
	if !plainAcquire(usual) {
		t.Error("what a worker sends does not pass for plain")
	}
}
