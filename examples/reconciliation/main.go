package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/client"
	pb "github.com/leasehold/leasehold/gen/leasehold/v1"
)

// config is what the program is told.
type config struct {
	service  string
	database string
	provider string
	fake     int
	lease    time.Duration
}

func main() {
	var cfg config
	flag.StringVar(&cfg.service, "service", "127.0.0.1:7070", "address of Leasehold")
	flag.StringVar(&cfg.database, "database-url", os.Getenv("DATABASE_URL"), "PostgreSQL of the application, where the tables payments and entries are made")
	flag.StringVar(&cfg.provider, "provider", "", "URL of the payment provider")
	flag.IntVar(&cfg.fake, "fake", 0, "serve a provider with so many payments in this process, and make them here too")
	flag.DurationVar(&cfg.lease, "lease", 0, "length of the leases; 0: that of the queue")
	flag.Parse()
	if err := run(context.Background(), cfg); err != nil {
		fmt.Fprintln(os.Stderr, "reconciliation:", err)
		os.Exit(1)
	}
}

// run works until a signal.
func run(ctx context.Context, cfg config) error {
	if cfg.database == "" || (cfg.provider == "") == (cfg.fake == 0) {
		return errors.New("-database-url is needed, and one of -provider and -fake")
	}
	db, err := connectPayments(ctx, cfg.database)
	if err != nil {
		return err
	}
	defer db.close()
	service, err := client.Connect([]string{cfg.service}, client.ConnectConfig{})
	if err != nil {
		return err
	}
	defer service.Close()
	if err := prepare(ctx, service); err != nil {
		return err
	}
	if cfg.fake > 0 {
		server, err := serveFake(ctx, &cfg, db)
		if err != nil {
			return err
		}
		defer server.Close() //nolint:errcheck // it only served what was made up
	}
	r := &reconciler{provider: &provider{url: cfg.provider}, payments: db}
	worker, err := client.NewWorker(service, client.WorkerConfig{
		Queues: []string{queueSettle, queueScan}, Concurrency: 8, LeaseDuration: cfg.lease,
		Handler: client.ByQueue(map[string]client.Handler{
			queueScan:   client.JSON(r.scan),
			queueSettle: client.JSONResult(r.settle),
		}),
	})
	if err != nil {
		return err
	}
	return client.RunUntilSignal(ctx, worker)
}

// prepare makes the queues, and the scan of today: started twice, by two processes or on one day
// again, it is one job.
func prepare(ctx context.Context, service *client.Service) error {
	queues := pb.NewQueueServiceClient(service.Conn())
	for _, name := range []string{queueScan, queueSettle} {
		_, err := queues.CreateQueue(ctx, &pb.CreateQueueRequest{Queue: &pb.Queue{Name: name}})
		if err != nil && status.Code(err) != codes.AlreadyExists {
			return err
		}
	}
	producer, err := client.NewProducer(service, client.ProducerConfig{})
	if err != nil {
		return err
	}
	day := time.Now().UTC().Format(time.DateOnly)
	return startScan(ctx, producer, day)
}

// startScan enqueues a scan from the first payment on.
func startScan(ctx context.Context, producer *client.Producer, name string) error {
	first, err := client.JSONPayload(scan{})
	if err != nil {
		return err
	}
	_, err = producer.Enqueue(ctx, client.NewJob{
		Queue: queueScan, Payload: first, Subject: "reconciliation/" + name, IdempotencyKey: "reconciliation/" + name,
	})
	return err
}

// serveFake serves a fake provider on a free port.
func serveFake(ctx context.Context, cfg *config, db *payments) (*http.Server, error) {
	fake := newFakeProvider(cfg.fake)
	fake.asked = func(after string) { slog.Info("the provider is asked", "after", after) }
	if err := db.seed(ctx, fake.list); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: fake, ReadHeaderTimeout: pageTimeout}
	go func() { _ = server.Serve(l) }() // it ends by Close
	cfg.provider = "http://" + l.Addr().String()
	return server, nil
}
