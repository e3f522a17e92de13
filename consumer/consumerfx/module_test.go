package consumerfx_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/consumer"
	"github.com/onceward/onceward/consumer/consumerfx"
	"github.com/onceward/onceward/middleware"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/fx"
	"go.uber.org/fx/fxtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 30 * time.Second

func identify(r *kgo.Record) (middleware.Identity, error) {
	return middleware.Identity{Key: string(r.Key), ID: string(r.Value)}, nil
}

// app is an application around the module, with two routes.
func app(seeds []string, handle middleware.RecordFunc) fx.Option {
	route := func(topic string) consumer.Route {
		return consumer.Route{Topics: []string{topic}, Identify: identify, Handler: handle}
	}
	return fx.Options(
		fx.NopLogger,
		consumerfx.Module,
		fx.Supply(
			consumer.Config{Group: "g", ConnectTimeout: 100 * time.Millisecond},
			slog.New(slog.DiscardHandler),
			fx.Annotate(route("t"), fx.ResultTags(`group:"routes"`)),
			fx.Annotate(route("u"), fx.ResultTags(`group:"routes"`)),
		),
		fx.Provide(fx.Annotate(func() []kgo.Opt {
			return []kgo.Opt{kgo.SeedBrokers(seeds...)}
		}, fx.ResultTags(`name:"kafka"`))),
	)
}

func newCluster(t *testing.T) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t", "u"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func produce(t *testing.T, c *kfake.Cluster, topic string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte("k"), Value: []byte(topic)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestModule_GraphIsComplete(t *testing.T) {
	if err := fx.ValidateApp(app(nil, nil)); err != nil {
		t.Error(err)
	}
}

func TestModule_ClientAndLoggerAreOptional(t *testing.T) {
	if err := fx.ValidateApp(fx.NopLogger, consumerfx.Module, fx.Supply(consumer.Config{})); err != nil {
		t.Error(err)
	}
}

func TestModule_ReportsEveryMistake(t *testing.T) {
	err := fx.New(fx.NopLogger, consumerfx.Module, fx.Supply(consumer.Config{})).Err()
	for _, want := range []string{"Group is", "Client is empty", "no routes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to say %q", err, want)
		}
	}
}

func TestModule_RunsFromStartToStop(t *testing.T) {
	c := newCluster(t)
	handled := make(chan string, 2)
	var ready *consumer.Consumer
	a := fxtest.New(t, app(c.ListenAddrs(), func(_ context.Context, r *kgo.Record) error {
		handled <- r.Topic
		return nil
	}), fx.Populate(&ready))
	a.RequireStart() // its context ends here
	for _, topic := range []string{"t", "u"} {
		produce(t, c, topic)
		select {
		case got := <-handled:
			if got != topic {
				t.Errorf("handled a record of %s, want %s", got, topic)
			}
		case <-time.After(deadline):
			t.Fatal("nothing is handled after the start")
		}
	}
	if err := ready.Ready(); err != nil {
		t.Errorf("Ready = %v", err)
	}
	a.RequireStop()
	for _, topic := range []string{"t", "u"} {
		if got := c.GroupInfo("g").Commits[topic][0].Offset; got != 1 {
			t.Errorf("committed offset of %s = %d, want 1", topic, got)
		}
	}
	if err := ready.Ready(); !errors.Is(err, consumer.ErrNotRunning) {
		t.Errorf("Ready after stop = %v, want ErrNotRunning", err)
	}
}

func TestModule_ConsumerThatGivesUpEndsTheApp(t *testing.T) {
	for name, tt := range map[string]struct {
		seeds func(t *testing.T) []string
		want  string
	}{
		"no broker": {func(*testing.T) []string { return []string{"localhost:1"} }, "no broker of localhost:1"},
		"handler stops it": {func(t *testing.T) []string {
			c := newCluster(t)
			produce(t, c, "t")
			return c.ListenAddrs()
		}, "disk full"},
	} {
		t.Run(name, func(t *testing.T) {
			a := fx.New(app(tt.seeds(t), func(context.Context, *kgo.Record) error {
				return middleware.Stop(errors.New("disk full"))
			}))
			if err := a.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-a.Wait():
				if got.ExitCode != 1 {
					t.Errorf("exit code = %d, want 1", got.ExitCode)
				}
			case <-time.After(deadline):
				t.Fatal("the app goes on without its consumer")
			}
			if err := a.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Stop = %v, want the consumer's error, %q", err, tt.want)
			}
		})
	}
}

func TestModule_StopDoesNotOutlastItsContext(t *testing.T) {
	c := newCluster(t)
	produce(t, c, "t")
	began, release := make(chan struct{}), make(chan struct{})
	var cons *consumer.Consumer
	a := fx.New(app(c.ListenAddrs(), func(context.Context, *kgo.Record) error {
		close(began)
		<-release
		return nil
	}), fx.Populate(&cons))
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-began:
	case <-time.After(deadline):
		t.Fatal("nothing is handled")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop = %v, want the end of its context", err)
	}
	close(release)
	for timeout := time.After(deadline); !errors.Is(cons.Ready(), consumer.ErrNotRunning); {
		select {
		case <-timeout:
			t.Fatal("the consumer does not end")
		case <-time.After(2 * time.Millisecond):
		}
	}
}
