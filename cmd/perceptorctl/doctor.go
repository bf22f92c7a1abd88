package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/node"
)

func (c *ctl) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look at every part and say what is wrong", Args: cobra.NoArgs,
		Long: "Look at every part of an installation, with the programs' configuration, and say what is wrong and what to\n" +
			"do about it. Nothing is changed. Parts that are not configured are left out.",
	}
	cli.ConfigFlags(cmd, config.NeedPostgres, func(cmd *cobra.Command, conf *config.Config) error {
		if err := c.checkOutput(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		findings := node.Examine(ctx, conf)
		if err := c.showFindings(cmd, findings); err != nil {
			return err
		}
		failed := 0
		for _, f := range findings {
			if f.State == node.Failed {
				failed++
			}
		}
		if failed > 0 {
			return &cli.Error{Code: cli.Failure, Err: fmt.Errorf("%d of %d checks failed", failed, len(findings))}
		}
		return nil
	}, "postgres", "kafka", "zookeeper")
	return cmd
}

func (c *ctl) showFindings(cmd *cobra.Command, findings []node.Finding) error {
	if c.output == "json" {
		return writeJSON(cmd.OutOrStdout(), findings)
	}
	t := &table{head: []string{"STATE", "PART", "WHAT"}}
	for _, f := range findings {
		t.add(strings.ToUpper(string(f.State)), f.Part, f.What)
	}
	return t.write(cmd.OutOrStdout())
}
