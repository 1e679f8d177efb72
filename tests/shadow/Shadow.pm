# Tells tests/shadow/follow.py, over the socket $ENV{SHADOW_SOCKET}, what a TAP test of PostgreSQL does with its servers.
# Loaded with PERL5OPT=-MShadow. Each event is a line of JSON; the test waits for the answer, which is an empty line.
package Shadow;
use strict;
use warnings;
use IO::Socket::UNIX;
use JSON::PP;

my ($pid, $socket) = ($$);

sub announce
{
	my ($moment, $node, %more) = @_;
	return if $$ != $pid;
	local ($!, $?, $@);
	$socket ||= IO::Socket::UNIX->new($ENV{SHADOW_SOCKET}) or die "$ENV{SHADOW_SOCKET}: $!";
	my %event = (moment => $moment, node => $node->name, host => $node->host, port => $node->port . '', %more);
	print $socket JSON::PP->new->utf8->canonical->encode(\%event), "\n";
	$socket->flush;
	<$socket>;
	return;
}

# The tests count slots: they must not see those of logicalrep.
sub without_slots
{
	my ($sql) = @_;
	my $others = "(SELECT * FROM pg_catalog.pg_replication_slots WHERE slot_name !~ '^shadow_') pg_replication_slots";
	return $sql =~ s/\bFROM\s+(?:pg_catalog\.)?pg_replication_slots\b/FROM $others/gir;
}

INIT
{
	$SIG{TERM} = $SIG{INT} = sub { die "ended by a signal\n" };    # END blocks stop the servers
	if ($INC{'PostgreSQL/Test/Cluster.pm'})
	{
		no strict 'refs';
		no warnings 'redefine';
		my $class = 'PostgreSQL::Test::Cluster';
		my %was = map { $_ => \&{"${class}::$_"} } qw(init append_conf start stop psql poll_query_until);
		*{"${class}::init"} = sub {
			my ($node, %params) = @_;
			$was{init}->($node, %params);
			my @settings = map { "$_ = 40" } qw(max_wal_senders max_replication_slots max_worker_processes);
			$node->append_conf('postgresql.conf', join("\n", @settings, 'max_connections = 80', '')) if $params{allows_streaming};
		};
		*{"${class}::append_conf"} = sub {
			my ($node, $file, $text) = @_;
			return $was{append_conf}->($node, $file, $text =~ s/\b(max_(?:wal_senders|replication_slots)\s*=\s*)[1-9]\d*/${1}40/gr);
		};
		*{"${class}::start"} = sub {
			my ($node, @more) = @_;
			my $started = $was{start}->($node, @more);
			announce('start', $node) if defined $node->{_pid};
			return $started;
		};
		*{"${class}::stop"} = sub {
			my ($node, @more) = @_;
			announce('stop', $node) if defined $node->{_pid};
			return $was{stop}->($node, @more);
		};
		*{"${class}::psql"} = sub {
			my ($node, $database, $sql, %params) = @_;
			my $matters = $sql =~ /\b(?:SUBSCRIPTION|PUBLICATION|DROP)\b/i;
			my %statement = (database => $database, sql => $sql);
			announce('before', $node, %statement) if $matters;
			my ($stdout, $stderr) = ('', '');
			my $wants = wantarray;
			$params{stdout} = \$stdout if $wants && !defined $params{stdout};
			$params{stderr} = \$stderr unless defined $params{stderr};
			my $code = $was{psql}->($node, $database, without_slots($sql), %params);
			my $error = defined $code && $code == 0 ? '' : ${ $params{stderr} } || 'failed';
			announce('after', $node, %statement, error => $error) if $matters;
			return $wants ? ($code, ${ $params{stdout} }, ${ $params{stderr} }) : $code;
		};
		*{"${class}::poll_query_until"} = sub {
			my ($node, $database, $sql, @more) = @_;
			return $was{poll_query_until}->($node, $database, without_slots($sql), @more);
		};
	}
}

1;
