# Completion of ddlrun in fish.

function _ddlrun_completion
    set -l response (env _DDLRUN_COMPLETE=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct) \
        ddlrun 2>/dev/null)

    for completion in $response
        set -l item (string split -m 1 "," -- $completion)
        switch $item[1]
            case dir
                __fish_complete_directories $item[2]
            case file
                __fish_complete_path $item[2]
            case plain
                echo $item[2]
        end
    end
end

complete --no-files --command ddlrun --arguments "(_ddlrun_completion)"
