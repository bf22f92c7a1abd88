package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
)

// examinedFor times the time limit of a call is the limit for all checks of the servers together.
const examinedFor = 3

func (c *ctl) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check every part of the installation", Args: cobra.NoArgs,
		Long: "Check every part of the installation with the configuration of the programs, and print what is wrong\n" +
			"and what to do about it. Nothing is changed. Parts that are not configured are named and skipped. The API is\n" +
			"checked if its address is set, by --address, PERCEPTOR_ADDRESS or a context.",
		Example: "  perceptorctl doctor --config /etc/perceptor.yaml\n  perceptorctl doctor --address localhost:7070",
	}
	cli.ConfigFlags(cmd, 0, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		if err := c.useContext(cmd); err != nil {
			return err
		}
		apiNamed := c.addressFrom != ""
		if len(conf.Postgres.Servers) == 0 && len(conf.Kafka.Brokers) == 0 && !apiNamed {
			return &cli.Error{Code: cli.Usage, Err: errors.New("there is nothing to check: none of postgres.servers, kafka.brokers and the address of the API is set"),
				Hint: "set --config or PERCEPTOR_CONFIG to the file of the programs, or --address, PERCEPTOR_ADDRESS or a context for the API alone"}
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), examinedFor*c.timeout)
		defer cancel()
		findings := app.Examine(ctx, conf)
		if apiNamed { // whatever time the servers took
			ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
			defer cancel()
			findings = append(findings, c.examineAPI(ctx))
		}
		if err := c.showFindings(cmd, findings); err != nil {
			return err
		}
		failed := 0
		for _, f := range findings {
			if f.State == app.Failed {
				failed++
			}
		}
		if failed > 0 {
			return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d of %d checks failed", failed, len(findings))}
		}
		return nil
	}, "postgres", "kafka", "assignment", "leases", "zookeeper")
	return cmd
}

func (c *ctl) showFindings(cmd *cobra.Command, findings []app.Finding) error {
	if c.structured() {
		return c.writeData(cmd, findings)
	}
	t := &table{head: []string{"STATE", "PART", "DETAIL"}}
	for _, f := range findings {
		detail := f.What
		if f.Cure != "" {
			detail += "; " + f.Cure
		}
		t.add(strings.ToUpper(string(f.State)), f.Part, detail)
	}
	return t.write(cmd.OutOrStdout())
}

// examineAPI asks the API whether it serves. No token is needed for that.
func (c *ctl) examineAPI(ctx context.Context) app.Finding {
	failed := func(err error) app.Finding {
		return app.Finding{State: app.Failed, Part: "api", What: fmt.Sprintf("at %s: %v", c.address, err),
			Cure: "does a taskd run there, is it ready (taskd health), and do --tls and --tls-ca-file fit what it serves?"}
	}
	creds, err := c.credentials()
	if err != nil {
		return failed(err)
	}
	conn, err := c.connect(creds)
	if err != nil {
		return failed(err)
	}
	defer conn.Close() //nolint:errcheck // nothing depends on it
	r, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return failed(c.explain(err))
	}
	if r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return failed(errors.New("it is not serving"))
	}
	return app.Finding{State: app.OK, Part: "api", What: "serves at " + c.address}
}
