"""The application, which the command line and the Python interface call.

The stages of a launch, each with the value that it returns:

    read_settings    Settings    what was asked for; here the options end
    check_settings   Attempt     the process manager is asked for its version meanwhile
    start_probe      Attempt     this machine is probed meanwhile
    survey_hosts     Surveyed    machines, network, software
    place_ranks      Placed      host, cores and GPU of every rank
    plan_job         Planned     rank file, environment, command
    write_files      Planned     the run folder
    ship_files       Planned     code, data and environment on the hosts, with --ship
    supervise_run    Finished    the outcome
    report_outcome   Finished    the reason of a failure, printed
    fetch_files      Finished    results of the ranks in the working folder, with --fetch

After a failure, next_attempt leads from Finished back to an Attempt.
"""
