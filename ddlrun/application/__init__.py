"""The application: the work of all commands, which `cli/` and `api/` call.

The stages of a launch, each with the value that it returns:

    read_settings    Settings    the request; later stages see no options
    check_settings   Attempt     the query of the process manager's version runs
    start_probe      Attempt     the probe of this machine runs, or agents start on others
    survey_hosts     Surveyed    machines, network, software
    place_ranks      Placed      host, cores and GPU of every rank
    plan_job         Planned     rank file, environment, command
    write_files      Planned     the run folder
    ship_files       Planned     code, data and environment on the hosts, with --ship
    supervise_run    Finished    the outcome
    report_outcome   Finished    the reason of a failure, shown
    fetch_files      Finished    results of the ranks in the working folder, with --fetch

After a failure, next_attempt leads from Finished back to an Attempt.
"""
