package operate

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// maxPayload is one byte more than the service takes: it says so itself.
const maxPayload = 1<<20 + 1

func newEnqueue(h Host) *cobra.Command {
	req := &pb.EnqueueRequest{}
	var subject, key, text, file, contentType string
	var headers []string
	var runAt *timestamppb.Timestamp
	cmd := &cobra.Command{
		Use: "enqueue QUEUE", Short: "Store one job", Args: cobra.ExactArgs(1),
		Long: "enqueue stores one job and answers its id. With --key it may be repeated: there is one job.",
	}
	cmd.Flags().StringVar(&text, "json", "", "the payload: one JSON value")
	cmd.Flags().StringVar(&file, "payload-file", "", "the payload: the bytes of a file, - for standard input")
	cmd.Flags().StringVar(&contentType, "content-type", "", "media type of the payload, for its reader")
	cmd.Flags().StringSliceVar(&headers, "header", nil, "NAME=VALUE, for trace contexts and the like; may be repeated")
	cmd.Flags().StringVar(&subject, "subject", "", "business key, as payment/123")
	cmd.Flags().StringVar(&key, "key", "", "idempotency key: makes the command repeatable")
	cmd.Flags().Var(count{&req.Priority}, "priority", "1 (first) .. 9 (default 5)")
	cmd.Flags().Var(span{&req.Delay}, "delay", "earliest start, from now")
	cmd.Flags().Var(instant{&runAt}, "run-at", "earliest start, in RFC 3339")
	return h.command(cmd, func(ctx context.Context, s *session, args []string) error {
		req.Queue, req.Subject, req.IdempotencyKey, req.RunAt = args[0], optional(subject), optional(key), runAt
		if text != "" && file != "" {
			return usage("--json and --payload-file exclude each other")
		}
		var err error
		if req.Payload, err = payload(h, text, file, contentType); err != nil {
			return err
		}
		if req.Headers, err = headerMap(headers); err != nil {
			return err
		}
		resp, err := s.jobs.Enqueue(ctx, req)
		if err != nil {
			return err
		}
		switch {
		case !s.people():
			return s.message(resp)
		case !resp.GetCreated():
			s.note("the key belongs to this job already")
		}
		return s.say("%s", resp.GetJobId())
	})
}

func payload(h Host, text, file, contentType string) (*pb.Payload, error) {
	p := &pb.Payload{ContentType: contentType}
	var err error
	var data []byte
	switch file {
	case "":
		if text != "" {
			p.Content = &pb.Payload_Json{Json: text}
		}
		return p, nil
	case "-":
		data, err = io.ReadAll(io.LimitReader(h.In, maxPayload))
	default:
		data, err = readFile(file)
	}
	if err != nil {
		return nil, usage("--payload-file: %w", err)
	}
	p.Content = &pb.Payload_Data{Data: data}
	return p, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	return io.ReadAll(io.LimitReader(f, maxPayload))
}

func headerMap(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range pairs {
		name, value, has := strings.Cut(pair, "=")
		if !has {
			return nil, usage("--header must be NAME=VALUE, got %q", pair)
		}
		out[name] = value
	}
	return out, nil
}

// instant is a time flag in RFC 3339.
type instant struct{ t **timestamppb.Timestamp }

// String is pflag.Value.
func (i instant) String() string { return moment(i).String() }

// Set is pflag.Value.
func (i instant) Set(text string) error {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%q is no time as 2026-01-31T15:04:05Z", text)
	}
	*i.t = timestamppb.New(at)
	return nil
}

// Type is pflag.Value.
func (instant) Type() string { return "time" }
