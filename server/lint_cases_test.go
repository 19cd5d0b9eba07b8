package server

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

func lintFaults() []badRequest {
	out := durationFaults("look_back", time.Minute, 365*24*time.Hour, "must be between 60 s and 365 days, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return &pb.LintRequest{LookBack: d}, "look_back"
	})
	return append(out, durationFaults("max_transaction_age", time.Second, 30*24*time.Hour, "must be between 1 s and 30 days, got ", func(d *durationpb.Duration) (proto.Message, string) {
		return &pb.LintRequest{MaxTransactionAge: d}, "max_transaction_age"
	})...)
}
